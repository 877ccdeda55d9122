"""Reports and tables of launches and verbs."""
