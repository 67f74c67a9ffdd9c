"""The documentation site: pages that are made from the code, pictures from real runs. `mkdocs build` calls `hooks`."""
