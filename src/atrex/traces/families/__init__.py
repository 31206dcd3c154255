"""Which operator a device kernel belongs to: rules as data, one file a framework, and the engine that applies them."""
