# The GPU stack with gtpo-verl in it: verl's own pins (pyproject.toml, extra `gpu`).
# docker build -t gtpo-verl:0.1.0 .
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PATH=/opt/venv/bin:$PATH
# git and a compiler: flash-attn and Triton build on the machine. iproute2, pciutils: NCCL's and Ray's diagnostics.
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3.12 python3.12-dev python3.12-venv build-essential git ninja-build iproute2 pciutils openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/venv

# torch before flash-attn, whose build imports it; both before the package, so that a change there rebuilds neither.
RUN pip install torch==2.11.0 vllm==0.24.0 transformers==5.9.0 setuptools wheel packaging psutil
ARG MAX_JOBS=8
RUN pip install --no-build-isolation flash-attn==2.8.3

WORKDIR /opt/gtpo-verl
COPY pyproject.toml README.md LICENSE ./
COPY configs ./configs
COPY gtpo_verl ./gtpo_verl
# Ray as on CPU (requirements/cpu.txt) and in scripts/kuberay/cluster.yaml.
RUN pip install ".[gpu,tasks]" "ray[default]==2.60.0" && gtpo-verl --help > /dev/null
