"""Applications whose participants fail and come back while they run: the paper's Figure 12."""
