/* The K best keys of each row of a tile: short lists are in order at any time, long ones in the end. */

/* Drops all but the K best of what a long list has collected, and raises the threshold to the worst of these. */
static __attribute__((noinline)) void drop_half(Tile *tile, int row, int num_keys) {
    Ranked *all = tile->buffer + (long)row * BUFFER(num_keys);
    int count = tile->collected[row];
    if (count < num_keys) return;
    select_rank(all, count, count - num_keys);
    memmove(all, all + count - num_keys, num_keys * sizeof(Ranked));
    tile->collected[row] = num_keys;
    real worst = all[0].value;
    for (int i = 1; i < num_keys; i++) worst = MIN(worst, all[i].value);
    if (worst > tile->threshold[row]) tile->threshold[row] = worst;
}

#if defined(AVX2) && !defined(DOUBLE)
/* The last lane first, the others after it. */
INLINE __m256 rotated(__m256 a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6)); }

/* What was there, `fresh` in the first place that is later than it, what was ahead of the places after that. */
INLINE __m256 moved(__m256 old, __m256 ahead, __m256 fresh, __m256 later, __m256 after) {
    return _mm256_blendv_ps(old, _mm256_blendv_ps(fresh, ahead, after), later);
}
#endif

/* Puts a score in order into a short list; of equal ones the first stays ahead. */
static inline void insert(Tile *tile, int row, real score, int32_t id, int num_keys) {
    real *scores = tile->score + row * tile->stride;
    int32_t *ids = tile->id + row * tile->stride;
#if defined(AVX512) && !defined(DOUBLE) /* without a branch on the place: it cannot be predicted */
    __m512 old = _mm512_loadu_ps(scores), fresh = _mm512_set1_ps(score);
    __m512i old_id = _mm512_loadu_si512(ids), shifted = _mm512_castps_si512(old);
    __mmask16 later = _mm512_cmp_ps_mask(old, fresh, _CMP_LT_OQ), here = later & -later;
    shifted = _mm512_alignr_epi32(shifted, shifted, 15);
    old = _mm512_mask_mov_ps(old, later, _mm512_castsi512_ps(shifted));
    old_id = _mm512_mask_mov_epi32(old_id, later, _mm512_alignr_epi32(old_id, old_id, 15));
    _mm512_storeu_ps(scores, _mm512_mask_mov_ps(old, here, fresh));
    _mm512_storeu_si512(ids, _mm512_mask_mov_epi32(old_id, here, _mm512_set1_epi32(id)));
#elif defined(AVX2) && !defined(DOUBLE) /* the same in two registers; nothing is ahead of the first place */
    __m256 front = _mm256_loadu_ps(scores), back = _mm256_loadu_ps(scores + 8), fresh = _mm256_set1_ps(score);
    __m256 before = _mm256_blend_ps(rotated(front), _mm256_set1_ps(INFINITY), 1);
    __m256 before_back = _mm256_blend_ps(rotated(back), rotated(front), 1);
    __m256 front_id = _mm256_loadu_ps((float *)ids), back_id = _mm256_loadu_ps((float *)ids + 8);
    __m256 fresh_id = _mm256_castsi256_ps(_mm256_set1_epi32(id));
    __m256 later = _mm256_cmp_ps(front, fresh, _CMP_LT_OQ), after = _mm256_cmp_ps(before, fresh, _CMP_LT_OQ);
    _mm256_storeu_ps(scores, moved(front, before, fresh, later, after));
    _mm256_storeu_ps((float *)ids, moved(front_id, rotated(front_id), fresh_id, later, after));
    later = _mm256_cmp_ps(back, fresh, _CMP_LT_OQ), after = _mm256_cmp_ps(before_back, fresh, _CMP_LT_OQ);
    _mm256_storeu_ps(scores + 8, moved(back, before_back, fresh, later, after));
    before_back = _mm256_blend_ps(rotated(back_id), rotated(front_id), 1);
    _mm256_storeu_ps((float *)ids + 8, moved(back_id, before_back, fresh_id, later, after));
#else
    int at = num_keys - 1;
    for (; at > 0 && scores[at - 1] < score; at--) scores[at] = scores[at - 1], ids[at] = ids[at - 1];
    scores[at] = score;
    ids[at] = id;
#endif
    if (scores[num_keys - 1] > tile->threshold[row]) tile->threshold[row] = scores[num_keys - 1];
}

/* Takes a key that beats the threshold among the K best of a row. */
static inline void offer(Tile *tile, int row, real score, int32_t id, int num_keys) {
    if (!(score > tile->threshold[row])) return;
    if (num_keys <= SHORT_LIST) {
        insert(tile, row, score, id, num_keys);
    } else {
        tile->buffer[(long)row * BUFFER(num_keys) + tile->collected[row]++] = (Ranked){score, id};
        if (tile->collected[row] == BUFFER(num_keys)) drop_half(tile, row, num_keys);
    }
    tile->low[row] = (float)tile->threshold[row]; /* the screen allows for this rounding */
    tile->inserted++;
}

/* Puts what long lists have collected in order, largest first. */
static void finish_lists(Tile *tile, int num_keys) {
    for (int row = 0; num_keys > SHORT_LIST && row < tile->count; row++) {
        Ranked *all = tile->buffer + (long)row * BUFFER(num_keys);
        drop_half(tile, row, num_keys);
        sort_ranked(all, tile->collected[row]);
        for (int i = 0, from = tile->collected[row] - 1; from >= 0; i++, from--) {
            tile->score[row * tile->stride + i] = all[from].value;
            tile->id[row * tile->stride + i] = all[from].id;
        }
    }
}
