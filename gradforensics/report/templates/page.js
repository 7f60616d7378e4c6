(()=>{addEventListener("beforeprint",()=>{for(const d of document.querySelectorAll("details:not([open])")){d.open=true;d.dataset.p=1}});
addEventListener("afterprint",()=>{for(const d of document.querySelectorAll("details[data-p]")){d.open=false;delete d.dataset.p}});
const show=()=>{const d=location.hash&&document.getElementById(location.hash.slice(1));if(d&&d.tagName==="DETAILS")d.open=true};
addEventListener("hashchange",show);show()})();
