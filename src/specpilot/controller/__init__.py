"""The controller: owns devices, sealed requests and the journal, and decides every verdict."""
