"""The heart of DTQ: the pure domain, the store (which alone knows Redis), writes (Client), reads (Inspector)."""
