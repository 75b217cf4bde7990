"""ActorQ: training with quantized actors on one machine or many, through Ray. It imports nothing: see VARIABLES."""

METHODS = ("d4pg", "dqn")
"""The algorithms that are distributed."""
VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
"""What the processes of a run have in their environment before numpy and TensorFlow, which read it, are loaded: one
thread of linear algebra each, since they share the cores."""
