"""The heart of DTQ: the pure domain, the store (the only package that knows Redis), all writes (Client) and all reads (Inspector)."""
