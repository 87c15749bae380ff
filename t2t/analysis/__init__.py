"""Analysis of attention heads: weights, roles, importance, and the page that shows them."""
