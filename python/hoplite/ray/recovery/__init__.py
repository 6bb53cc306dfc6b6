"""Lost objects: tasks are recorded, losses reported, and lost results rebuilt by running tasks again."""
