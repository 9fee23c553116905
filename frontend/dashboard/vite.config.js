// One script and one style under names that do not change, into the Python package, which serves them as they are.
import { defineConfig } from "vite";

export default defineConfig({
  base: "/",
  build: {
    outDir: "../../src/mini_agentic_rl/apps/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        assetFileNames: (asset) => (asset.names?.some((name) => name.endsWith(".css")) ? "app.css" : "[name][extname]"),
      },
    },
  },
  experimental: {
    renderBuiltUrl: (filename) => "/dashboard/" + filename,
  },
});
