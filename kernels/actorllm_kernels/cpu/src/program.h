// A step as a list of operations over buffers. The same structures stand in library.py, field by field.
#pragma once

#include "attention.h"

enum Kind {
    OP_EMBED = 0,
    OP_ACTIVATE = 1,  // makes the left side of products
    OP_LINEAR = 2,
    OP_GATED = 3,  // two products, gate and up, and from them the left side of another product
    OP_ROTATE = 4,
    OP_ATTEND = 5,
    OP_JOIN = 6,
    OP_NORM = 7,
};

// One operation; each kind uses some of the fields.
struct Op {
    int32_t kind;
    int32_t weights;     // the form of `packed`
    int32_t activation;  // the form of the left side of a product
    int32_t next_weights, next_activation;  // of the product whose left side is made
    int32_t left;        // of a product: the operation that makes its left side
    int32_t gate;
    int32_t adds;        // to the target, or put in its place
    int32_t wanted;      // over the wanted rows of the step, or over all
    int32_t beside;      // runs at the same time as the operation before it
    int32_t rope, group, layer;
    int32_t window;
    float scale, soft_cap, eps;
    int64_t width;          // columns of the source that count
    int64_t outputs;        // columns of the target
    int64_t source_stride, target_stride;
    const void* packed;     // weights; of GATED those of the gate
    const void* packed_up;
    const float* bias;      // or the factors of a norm
    const float* k_norm;    // of ROTATE, where `bias` is q's
    void* source;
    void* target;
};

struct Shape {
    Heads heads;
    int64_t layer_bytes;   // of the cache
    char* cache;
    const float* const* cosines;  // of each rope [positions, head size / 2]
    const float* const* sines;
};

// What changes from step to step; columns as in the batch's StepInputs.
struct Step {
    int64_t num_tokens, num_rows, num_wanted;
    int64_t table_width;  // blocks of a row of block_table
    const int32_t* input_ids;
    const int64_t* positions;
    const int64_t* slot_mapping;     // [groups, num_tokens]
    const int32_t* query_start_loc;  // [num_rows + 1]
    const int32_t* seq_lens;
    const int32_t* block_table;      // [groups, num_rows, table_width]
    const int64_t* wanted;           // indices of tokens
    uint64_t* likeliest;             // [num_wanted] the largest rank of each wanted row's outputs; or null
};
