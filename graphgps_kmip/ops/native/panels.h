/* Tiles of queries against all panels of keys, in the order in which these stand. */

#define FEW_SEEDS 16 /* panels that start the thresholds, at least */

/* In an order that has nothing to do with the scores a row takes K (1 + ln(M / K)) keys into its list, fewer after its
 * first thresholds. Where scores rise from panel to panel every key enters, and this many say so. */
static long most_inserts(const Keys *keys, int num_keys) {
    double rounds = log2((double)keys->count / num_keys + 2);
    return (long)(ROWS * (2 * num_keys * rounds + 32));
}

/* The remaining panels in an order that no data set knows: steps by the golden ratio, so new maxima are rare. */
static void scan_scattered(Tile *tile, const Keys *keys, long from, int num_keys) {
    long rest = keys->panels - from, step = (long)(rest * 0.6180339887498949) | 1;
    while (rest > 1) { /* the step must share no factor with the number of panels */
        long a = rest, b = step;
        while (b) { long c = a % b; a = b; b = c; }
        if (a == 1) break;
        step++;
    }
    for (long i = 0, at = 0; i < rest; i++, at = (at + step) % rest)
        if (!hopeless(tile, keys->norm[from + at])) scan(tile, keys, from + at, num_keys);
    settle(tile, keys, num_keys);
    tile->done = 1;
}

/* All panels for each tile, by descending norm if they come so. */
static void search_panels(Tile *all, int tiles, const Keys *keys, int norm_order, int num_keys) {
    long limit = most_inserts(keys, num_keys);
    for (int t = 0; t < tiles; t++) {
        long many = MIN(keys->panels, MAX(40, 2 * num_keys) + keys->panels / 64);
        int try_few = norm_order && keys->panels > 8 * FEW_SEEDS;
        if (try_few) seed(&all[t], keys, 0, FEW_SEEDS, num_keys);
        /* where norms do not end the rows soon, more seeds are repaid */
        if (!try_few || !hopeless(&all[t], keys->norm[8 * FEW_SEEDS])) seed(&all[t], keys, 0, many, num_keys);
    }
    for (long super = 0; super < keys->panels; super += SUPER) {
        long end = MIN(super + SUPER, keys->panels);
        for (Tile *tile = all; tile < all + tiles; tile++) {
            for (long panel = super; panel < end && !tile->done; panel++) {
                if (hopeless(tile, keys->norm[panel])) tile->done = norm_order;
                else scan(tile, keys, panel, num_keys);
                if (tile->inserted > limit) scan_scattered(tile, keys, panel + 1, num_keys);
            }
            settle(tile, keys, num_keys);
        }
    }
}
