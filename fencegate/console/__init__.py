"""The page at ``/-/console``: who leads, by the word of every region, and what is refused."""
