"""The cost model: exact replay, floors, and the ceiling that says where speed is lost."""
