"""Statistics of the judge; each is checked against scipy or simulation."""
