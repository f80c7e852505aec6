"""`python -m keras_tfm.cli`."""

from keras_tfm.cli import main

if __name__ == "__main__":
    main()
