"""Keeps servers under test and agents away from the judge: namespaces, guards, probes."""
