# minisbert serve in a container:
#
#     docker build -t minisbert --build-arg TORCH_INDEX=... .    the address of PyTorch's CPU wheels, from its website
#     docker run -p 8000:8000 -v minisbert:/models minisbert all-MiniLM-L6-v2 --compiled
#
# Without TORCH_INDEX pip takes the usual torch, which on Linux brings CUDA along. Models and compiled packages stay in
# the volume. MINISBERT_API_KEY sets the token that clients must send.
FROM python:3.12-slim

# for --compiled, on the CPU that runs the container
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
ARG TORCH_INDEX=""
COPY constraints.txt /minisbert/
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -c /minisbert/constraints.txt torch
COPY . /minisbert
RUN pip install --no-cache-dir -c /minisbert/constraints.txt "/minisbert[serve]"

RUN useradd --create-home minisbert && mkdir /models && chown minisbert /models
USER minisbert
ENV MINISBERT_HOME=/models HF_HOME=/models/huggingface
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["minisbert", "serve", "--host", "0.0.0.0"]
CMD ["all-MiniLM-L6-v2"]
