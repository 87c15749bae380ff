"""Models in the formats of other libraries."""
