"""The compile gate alone, without a device: what a candidate launches is compiled for a target that need not be here.

Launch code runs inside `forward`, so `forward` is run: float operands are fake (they have a shape, a dtype, strides
and a pointer, and no memory), integer operands keep their values, and a kernel launch compiles and returns.
"""
