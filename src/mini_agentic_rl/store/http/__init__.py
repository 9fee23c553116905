"""The store over HTTP: one table of routes, and the server, the client and the OTLP intake made from it."""
