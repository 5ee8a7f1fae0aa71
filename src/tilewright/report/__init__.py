"""Tables from records: for a terminal (rich) and for README and docs (Markdown)."""
