"""What attention heads do: their weights, roles and importance, and the page that shows them."""
