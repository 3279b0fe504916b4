"""Engines behind one protocol: what the judge starts and plays requests on."""
