"""Workers in jobs of Slurm, or in steps of a job that the session itself runs in."""
