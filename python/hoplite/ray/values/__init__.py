"""Values on their way through Ray: handles in pickles, and the calls of the explicit mode."""
