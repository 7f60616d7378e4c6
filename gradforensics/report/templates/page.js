(()=>{const all=(s,f)=>document.querySelectorAll(s).forEach(f);
addEventListener("beforeprint",()=>all("details:not([open])",d=>{d.open=true;d.dataset.p=1}));
addEventListener("afterprint",()=>all("details[data-p]",d=>{d.open=false;delete d.dataset.p}));
const show=()=>{const d=location.hash&&document.getElementById(decodeURIComponent(location.hash.slice(1)));for(let e=d;e;e=e.parentElement)if(e.tagName==="DETAILS")e.open=true;d&&d.scrollIntoView()};
addEventListener("hashchange",show);show();
all("[name=language]",r=>{r.addEventListener("change",()=>{document.documentElement.lang=r.value});if(r.checked)document.documentElement.lang=r.value});
const t=document.getElementById("copying");
t&&all("pre.command,pre.fix",c=>{const b=t.content.cloneNode(true).firstElementChild,[before,after]=b.children;
b.addEventListener("click",async()=>{try{await navigator.clipboard.writeText(c.innerText.trim())}catch{getSelection().selectAllChildren(c);return}
before.hidden=true;after.hidden=false;setTimeout(()=>{before.hidden=false;after.hidden=true},1500)});c.after(b)})})();
