(()=>{for(const b of document.querySelectorAll(".filter")){
const i=b.querySelector("input"),o=b.querySelector("output"),s=b.parentNode,R=[...s.querySelectorAll("tbody tr,li")],D=[...s.querySelectorAll("details")];
if(R.length<8)continue;b.hidden=false;
const T=R.map(r=>r.textContent.toLowerCase());
i.addEventListener("input",()=>{const q=i.value.trim().toLowerCase();let n=0;
R.forEach((r,k)=>{r.hidden=!!q&&!T[k].includes(q);n+=!r.hidden});
for(const d of D)if(q){if(!("f"in d.dataset))d.dataset.f=d.open?1:"";d.open=R.some(r=>!r.hidden&&d.contains(r))}else if("f"in d.dataset){d.open=!!d.dataset.f;delete d.dataset.f}
o.textContent=q?n+" / "+R.length:""});
i.addEventListener("keydown",e=>{if(e.key==="Escape"){i.value="";i.dispatchEvent(new Event("input"))}})}})();
