import sys, subprocess, time, torch, json, os
import benchmarks.fit_gpu as fg
from flashcaps.kernels import _fit_forward as F, _fit_gradients as G
from flashcaps.kernels._fit_triton import source_of
from flashcaps.votes import Votes
def bench(fn):
    fn(); torch.cuda.synchronize()
    if os.environ.get("WARM"): return 0.0
    best = []
    for _ in range(7):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); fn(); b.record(); torch.cuda.synchronize(); best.append(a.elapsed_time(b))
    return sorted(best)[3] * 1e3
def setup(name):
    torch.manual_seed(0)
    if name == "em": b,g,r,c,k,h,j = 3136,288,1,4,4,4,32
    elif name == "hein": b,g,r,c,k,h,j = 20,1,5184,4,8,4,64
    else: b,g,r,c,k,h,j = 20,1,1480,1,65,2,64
    u = torch.randn(b,g,r,c,k,device="cuda"); w = torch.randn(j,k,g,h,device="cuda")
    s = source_of(Votes(u,w)); d=c*h; i=g*r
    prior=torch.randn(b,j,device="cuda"); mean=torch.randn(b,d,j,device="cuda"); var=torch.rand(b,d,j,device="cuda")+4
    gate=torch.rand(b,i,device="cuda")
    table=F.describe(s,prior,mean,var); z=F.normaliser(s,table)
    n,m,v,_=F.moments(s,(table,z,None),gate,None,1e-3)
    fit=G.Fitted(prior,mean,var,None,z,gate,None,n,m,v)
    ctx=G.context(s,fit,(torch.randn_like(n),torch.randn_like(m),torch.randn_like(v),torch.randn_like(n)),1e-3)
    return s,table,z,gate,ctx
def patch(lanes=None, walk=None, batch=None):
    if lanes: F.child_lanes = G.child_lanes = lambda s: lanes
    if walk: F.walk_children = G.walk_children = lambda s, rows=None: F.Walk(*walk)
    if batch: G.walk_batch = lambda s: F.Walk(*batch)
def run(name, only=None):
    s,table,z,gate,ctx = setup(name); gs=G.child_sums(ctx); gz=torch.randn_like(gs) if name=="em" else None
    out = {}
    if only in (None,"child"):
        for lanes in (32,64):
            patch(lanes=lanes); G.LANES=lanes
            out[f"normaliser {lanes}"]=bench(lambda: F.normaliser(s,table))
            out[f"sums {lanes}"]=bench(lambda: G.child_sums(ctx))
            if s.u is not None and not (lanes==64 and name=="hein"): out[f"pose {lanes}"]=bench(lambda: G.child_gradients(ctx,gs,gz,False))
            if lanes==32 and name=="hein": out[f"pose+sums {lanes}"]=bench(lambda: G.child_gradients(ctx,gs,None,True))
        G.LANES=32
    if only in (None,"walk"):
        ws = {"em": [(1,32,288),(1,32,96),(1,32,48)], "hein": [(1,32,324),(1,32,162),(1,32,81)], "sst":[(1,32,93),(1,32,47),(1,64,47)]}[name]
        for w in ws:
            patch(walk=w)
            out[f"moments {w}"]=bench(lambda: F.moments(s,(table,z,None),gate,None,1e-3))
            out[f"parents {w}"]=bench(lambda: G.parent_gradients(ctx,gs,gz))
    if name=="em" and only in (None,"batch"):
        for w in ((1,32,98),(2,32,49),(2,32,98),(2,32,196)):
            patch(batch=w)
            out[f"weights {w}"]=bench(lambda: G.weight_gradients(ctx,gs,gz))
    return out
if __name__ == "__main__":
    if len(sys.argv)>1: run(*sys.argv[1:]); sys.exit()
    res={}
    for n in ("em","hein","sst"):
        res[n]=run(n)
        for k,v in res[n].items(): print(f"  {n} {k:<28}{v:>9.1f} us",flush=True)
    json.dump(res,open(os.path.join(os.environ["OUT"],"sweep.json"),"w"))
