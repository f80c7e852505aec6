"""`python -m keras_tfm.cli`."""

from keras_tfm.cli import main

main()
