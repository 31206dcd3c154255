# Untested: written where no container engine was at hand. A CUDA image that judges kernels on the GPUs it is given.
#
#     docker build -t atrex .
#     docker run --rm --gpus all -v "$PWD:/work" atrex eval my_kernel.py --problem rms_norm --device cuda:0 --out runs/mine
#
# nvcc, g++ and ninja are in it, so that CUDA candidates build. Landlock works in a container as it is; `atrex doctor` says
# what else holds there. Mount no control socket of the engine into it (docs/trust.md). Clocks are locked from outside.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-dev python3-venv g++ git \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/atrex
ENV PATH=/opt/atrex/bin:$PATH

COPY pyproject.toml README.md LICENSE /src/
COPY requirements /src/requirements
COPY src /src/src
COPY examples /src/examples
RUN pip install --no-cache-dir -c /src/requirements/ci.txt "/src[agents,serve,traces,triton,wiki]"

WORKDIR /work
ENTRYPOINT ["atrex"]
CMD ["doctor"]
