"""The pure state machine of an elector: ``words`` are its states, events and effects, ``machine`` its rules."""
