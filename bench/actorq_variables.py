"""What the processes of an ActorQ run have in their environment, for a program that measures their parts in itself.

It imports nothing: the variables must be there before numpy and TensorFlow are loaded, which read them then. They are
those of ``train.actorq.cluster``, whose import would load both.
"""

VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
