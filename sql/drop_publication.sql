drop publication {publication};
