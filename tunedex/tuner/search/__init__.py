"""What to try next: the points of a space, the samplers that choose among them, and the search of a sweep."""
