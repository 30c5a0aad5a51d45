"""One stretch of recording: the dispatch mode, and how the rooms are joined."""
