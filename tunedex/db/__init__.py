"""What is remembered: models, the store with every query, the selection of the best, migrations."""
