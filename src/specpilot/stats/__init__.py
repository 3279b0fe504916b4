"""Statistics of the judge; each is checked against scipy or simulation.

What every process of the judge imports takes its quantiles from `scipy.special`: importing
`scipy.stats` takes half a second.
"""
