/* What the drivers add to the kernel's answers (rdma/NAME-abi.h): of mlx5 and efa enough for their providers to make a PD, an MR, a CQ and a
 * QP, of the others that want sizes to map enough for a context. All offsets to map at are zero: beyond that /dev/zero has nothing. */
#include "double.h"

#include <rdma/bnxt_re-abi.h>
#include <rdma/cxgb4-abi.h>
#include <rdma/efa-abi.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/ocrdma-abi.h>
#include <rdma/qedr-abi.h>
#include <string.h>

#define PAGE 4096

static const struct mlx5_ib_alloc_ucontext_resp mlx5_context = {
	.qp_tab_size = 1 << 17,
	.bf_reg_size = 512,
	.tot_bfregs = 16,
	.cache_line_size = 64,
	.max_sq_desc_sz = 1024,
	.max_rq_desc_sz = 512,
	.max_send_wqebb = 1 << 15,
	.max_recv_wr = 1 << 15,
	.max_srq_recv_wr = (1 << 15) - 1,
	.num_ports = 1,
	.response_length = sizeof(mlx5_context),
	.cqe_version = 1,
	.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE,
	.eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
	.log_uar_size = 12,
	.num_uars_per_page = 1,
};
static const struct mlx5_ib_query_device_resp mlx5_device = {.response_length = sizeof(mlx5_device)};
static const struct mlx5_ib_alloc_pd_resp mlx5_pd = {.pdn = 7};
static const struct mlx5_ib_create_cq_resp mlx5_cq = {.cqn = 0x40};
static const struct mlx5_ib_create_qp_resp mlx5_qp = {.bfreg_index = 0};

static const struct efa_ibv_alloc_ucontext_resp efa_context = {
	.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
	.sub_cqs_per_cq = 2,
	.inline_buf_size = 32,
	.max_llq_size = 32768,
	.max_tx_batch = 4,
	.min_sq_wr = 1,
};
static const struct efa_ibv_ex_query_device_resp efa_device = {
	.max_sq_wr = 256, .max_rq_wr = 1024, .max_sq_sge = 2, .max_rq_sge = 4, .max_rdma_size = 1 << 20};
static const struct efa_ibv_alloc_pd_resp efa_pd = {.pdn = 7};
static const struct efa_ibv_create_cq_resp efa_cq = {.q_mmap_size = 16 * PAGE, .cq_idx = 3};
static const struct efa_ibv_create_qp_resp efa_qp = {.rq_mmap_size = 64 * PAGE, .send_sub_cq_idx = 0, .recv_sub_cq_idx = 1};

static const struct bnxt_re_uctx_resp bnxt_re_context = {.max_qp = 1024, .pg_size = PAGE, .cqe_sz = 32, .max_cqd = 4096};
static const struct c4iw_alloc_ucontext_resp cxgb4_context = {.status_page_size = PAGE};
static const struct ocrdma_alloc_ucontext_resp ocrdma_context = {
	.wqe_size = 128, .max_inline_data = 64, .ah_tbl_len = PAGE, .rqe_size = 64};
static const struct qedr_alloc_ucontext_resp qedr_context = {
	.db_size = PAGE, .max_send_wr = 1024, .max_recv_wr = 1024, .max_srq_wr = 1024, .max_cqes = 4096};

#define ANSWER(driver, which, value) {driver, which, &(value), sizeof(value)}

static const struct {
	unsigned driver;
	enum answer which;
	const void *value;
	size_t length;
} answers[] = {
	ANSWER(RDMA_DRIVER_MLX5, ANSWER_CONTEXT, mlx5_context),
	ANSWER(RDMA_DRIVER_MLX5, ANSWER_DEVICE, mlx5_device),
	ANSWER(RDMA_DRIVER_MLX5, ANSWER_PD, mlx5_pd),
	ANSWER(RDMA_DRIVER_MLX5, ANSWER_CQ, mlx5_cq),
	ANSWER(RDMA_DRIVER_MLX5, ANSWER_QP, mlx5_qp),
	ANSWER(RDMA_DRIVER_EFA, ANSWER_CONTEXT, efa_context),
	ANSWER(RDMA_DRIVER_EFA, ANSWER_DEVICE, efa_device),
	ANSWER(RDMA_DRIVER_EFA, ANSWER_PD, efa_pd),
	ANSWER(RDMA_DRIVER_EFA, ANSWER_CQ, efa_cq),
	ANSWER(RDMA_DRIVER_EFA, ANSWER_QP, efa_qp),
	ANSWER(RDMA_DRIVER_BNXT_RE, ANSWER_CONTEXT, bnxt_re_context),
	ANSWER(RDMA_DRIVER_CXGB4, ANSWER_CONTEXT, cxgb4_context),
	ANSWER(RDMA_DRIVER_OCRDMA, ANSWER_CONTEXT, ocrdma_context),
	ANSWER(RDMA_DRIVER_QEDR, ANSWER_CONTEXT, qedr_context),
};

void driver_answer(enum answer which, void *out, size_t room)
{
	for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++)
		if (answers[i].driver == the_device()->driver && answers[i].which == which)
			memcpy(out, answers[i].value, answers[i].length < room ? answers[i].length : room);
}
