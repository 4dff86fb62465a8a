"""`skep demo`: a throwaway repository, a worker that tries to break out, and what came of it."""
