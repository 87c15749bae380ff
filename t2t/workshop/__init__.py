"""Programs run as the steps of a recipe, each once, and one report about all of them."""
