"""Text: reading and cleaning what workers, scripts and files contain, and wording what Muster shows."""
