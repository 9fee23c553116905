"""The documentation as a site: its pages gathered into one folder, generated ones beside them, and their links checked.

`python -m documentation FOLDER` (with dev/ on the path) fills a folder that mkdocs builds: `make docs`. The pages are
written once, in docs/ and at the root of the repository; nothing that is generated is kept there but docs/llms.txt.
"""
