// Loss of proposal cluster learning (Tang et al.): N proposals, C classes of which 0 is the
// background, P clusters.
//   loss = 1/N * (sum over i with labels[i] = 0 of -cls_loss_weights[i] * log(pcl_probs[i, 0])
//               + sum over p with pc_labels[p] > 0 of -img_cls_loss_weights[p] * log(pc_probs[p]))
// where classes c with im_labels[c] = 0 do not count.
//
//! op      pcl_loss(Tensor pcl_probs, Tensor labels, Tensor cls_loss_weights, \
//!           Tensor gt_assignment, Tensor pc_labels, Tensor pc_probs, Tensor pc_count, \
//!           Tensor img_cls_loss_weights, Tensor im_labels) -> Tensor loss
//! doc     Loss of proposal cluster learning. The gradient is of pcl_probs alone: of proposal i in
//! doc     class labels[i] it is that of its cluster's mean, cluster gt_assignment[i].
//! doc     labels, gt_assignment, pc_labels, pc_count and im_labels may be integers or floating;
//! doc     labels and pc_labels are whole numbers from 0 to C - 1, gt_assignment from 0 to P - 1.
//! doc     The assignment of a background proposal, labels[i] = 0, may be any number, as -1.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32
//! type    labels_t int64 int32 float32 float64 float16 bfloat16 : labels
//! type    assign_t int64 int32 float32 float64 float16 bfloat16 : gt_assignment
//! type    cluster_t int64 int32 float32 float64 float16 bfloat16 : pc_labels
//! type    count_t int64 int32 float32 float64 float16 bfloat16 : pc_count
//! type    image_t int64 int32 float32 float64 float16 bfloat16 : im_labels
//! shape   pcl_probs [N, C]
//! require N > 0 && C > 0 : "pcl_probs is {pcl_probs}, expected at least one proposal and class: \
//!           the loss is a mean over proposals"
//! shape   labels cls_loss_weights gt_assignment [N]; im_labels [C]; loss []
//! shape   pc_labels pc_probs pc_count img_cls_loss_weights [P]
//! require fits32(N + 4096, P + 4096, C) : "pcl_probs is {pcl_probs}, pc_labels {pc_labels}; expected \
//!           fewer than 2^31 - 4096 proposals, classes and clusters"
//! check   known_label : "labels[{index}] is none of the {C} classes, expected a whole number \
//!           from 0 to {C - 1}"
//! check   known_cluster : "pc_labels[{index}] is none of the {C} classes, expected a whole \
//!           number from 0 to {C - 1}"
//! check   in_range : "gt_assignment[{index}] is none of the {P} clusters, expected a whole \
//!           number from 0 to {P - 1}: labels[{index}] is not background"
//! check   same_label : "labels[{index}] is not pc_labels[gt_assignment[{index}]], the label of \
//!           its cluster; expected the same"
//! let     BLOCK = cpu ? 32 : 1024; LANES = cpu ? 1 : 8
//! example pcl_probs=[37,5] labels=[37] cls_loss_weights=[37] gt_assignment=[37] pc_labels=[4] \
//!           pc_probs=[4] pc_count=[4] img_cls_loss_weights=[4] im_labels=[5] \
//!           pcl_probs in 0.1..0.9 pc_probs in 0.1..0.9 labels is i % 5 pc_labels is [1, 2, 3, 4] \
//!           gt_assignment is i % 5 - 1 pc_count is 9 im_labels in 0..1
//!
//! forward
//!   kernel  pcl_loss_forward grid 1 block BLOCK
//! backward grad_pcl_probs by definition
//!   kernel  pcl_loss_backward threads N*LANES

// The whole number from 0 to n - 1 that stands there; -1 where it is none.
template <class T, class I> __device__ __forceinline__ I read_index(const T *at, I n)
{
    typedef typename opd::acc_type<T>::type number;
    const number v = opd::load(at);
    if (number(0.5f) == 0) // of integers
        return v >= 0 && v < n ? (I)v : I(-1);
    if (!(v >= 0 && v < (int64_t(1) << 62))) // so is a NaN
        return -1;
    const int64_t k = (int64_t)v;
    return k < n && v == k ? (I)k : I(-1);
}

// Whether proposal i, of label c > 0, has a cluster p, of the same label; else the request fails.
__device__ __forceinline__ bool check_cluster(opd::report_t *report, int64_t i, int64_t c,
                                              int64_t p, int64_t label_of_p)
{
    return opd::check(report, in_range, p >= 0, i) &&
           opd::check(report, same_label, label_of_p == c, i);
}

// One block, so that the sum is in the same order on every run. A thread has TOGETHER proposals and
// clusters at a time. All that does not wait for another load is loaded before anything is looked at:
// waiting for memory is what takes the time, then instructions, which one processor issues.
template <int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    pcl_loss_forward(const scalar_t *pcl_probs, const labels_t *labels,
                     const scalar_t *cls_loss_weights, const assign_t *gt_assignment,
                     const cluster_t *pc_labels, const scalar_t *pc_probs,
                     const scalar_t *img_cls_loss_weights, const image_t *im_labels,
                     scalar_t *loss, opd::report_t *report, int N, int C, int P)
{
    enum { TOGETHER = 2 };
    acc_t sum = 0;
    for (int first = threadIdx.x; first < N || first < P; first += TOGETHER * BLOCK) {
        labels_t label[TOGETHER];
        assign_t assigned[TOGETHER];
        cluster_t pc_label[TOGETHER], of_p[TOGETHER];
        image_t image[TOGETHER], background = im_labels[0];
        scalar_t weight[TOGETHER], prob[TOGETHER], pc_weight[TOGETHER], pc_prob[TOGETHER];
        int c[TOGETHER], p[TOGETHER], pc[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int i = first + k * BLOCK;
            if (i < N) {
                label[k] = labels[i];
                assigned[k] = gt_assignment[i];
                weight[k] = cls_loss_weights[i];
                prob[k] = pcl_probs[(int64_t)i * C];
            }
            if (i < P) {
                pc_label[k] = pc_labels[i];
                pc_weight[k] = img_cls_loss_weights[i];
                pc_prob[k] = pc_probs[i];
            }
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int i = first + k * BLOCK;
            if (i < N) {
                c[k] = read_index(&label[k], C);
                p[k] = read_index(&assigned[k], P);
                if (p[k] >= 0)
                    of_p[k] = pc_labels[p[k]];
            }
            if (i < P) {
                pc[k] = read_index(&pc_label[k], C);
                if (pc[k] >= 0)
                    image[k] = im_labels[pc[k]];
            }
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int i = first + k * BLOCK;
            if (i < N) {
                opd::check(report, known_label, c[k] >= 0, i);
                if (c[k] > 0)
                    check_cluster(report, i, c[k], p[k], p[k] < 0 ? -1 : read_index(&of_p[k], C));
                if (c[k] == 0 && background != image_t(0))
                    sum -= opd::load(&weight[k]) * log(opd::load(&prob[k]));
            }
            if (i < P) {
                opd::check(report, known_cluster, pc[k] >= 0, i);
                if (pc[k] > 0 && image[k] != image_t(0))
                    sum -= opd::load(&pc_weight[k]) * log(opd::load(&pc_prob[k]));
            }
        }
    }
    sum = opd::block_reduce_sum<BLOCK>(sum);
    if (threadIdx.x == 0)
        opd::store(loss, sum / (acc_t)N);
}

// LANES threads store a row, whose one gradient each of them works out.
template <int LANES>
__global__ void pcl_loss_backward(const scalar_t *pcl_probs, const labels_t *labels,
                                  const scalar_t *cls_loss_weights, const assign_t *gt_assignment,
                                  const cluster_t *pc_labels, const scalar_t *pc_probs,
                                  const count_t *pc_count, const scalar_t *img_cls_loss_weights,
                                  const image_t *im_labels, const scalar_t *grad_loss,
                                  scalar_t *grad_pcl_probs, opd::report_t *report, int64_t N,
                                  int64_t C, int64_t P)
{
    CUDA_KERNEL_LOOP(k, N * LANES)
    {
        const int64_t i = k / LANES;
        const scalar_t of_loss = *grad_loss;
        const int64_t c = read_index(labels + i, C), p = read_index(gt_assignment + i, P);
        scalar_t weight = scalar_t(0.f), prob = scalar_t(1.f);
        cluster_t of_p = cluster_t(0);
        count_t count = count_t(1);
        image_t image = image_t(0);
        if (c == 0) {
            weight = cls_loss_weights[i];
            prob = pcl_probs[i * C];
        } else if (c > 0 && p >= 0) {
            weight = img_cls_loss_weights[p];
            prob = pc_probs[p];
            count = pc_count[p];
            of_p = pc_labels[p];
        }
        if (c >= 0)
            image = im_labels[c];
        const int64_t label_of_p = c > 0 && p >= 0 ? read_index(&of_p, C) : -1;
        const bool counts = image != image_t(0), known = c == 0 || label_of_p == c;
        if (counts && !known && k % LANES == 0)
            check_cluster(report, i, c, p, label_of_p);
        const acc_t below = (acc_t)count * opd::load(&prob) * (acc_t)N;
        acc_t grad = 0;
        if (counts && known)
            grad = -opd::load(&weight) * opd::load(&of_loss) / below;
#pragma unroll 1
        for (int64_t other = k % LANES; other < C; other += LANES)
            opd::store(grad_pcl_probs + i * C + other, other == c ? grad : acc_t(0));
    }
}
