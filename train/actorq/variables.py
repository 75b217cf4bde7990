"""What the processes of a run have in their environment: one thread of linear algebra each, since they share the cores.

It imports nothing: the variables must be there before numpy and TensorFlow are loaded, which read them then.
"""

VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
