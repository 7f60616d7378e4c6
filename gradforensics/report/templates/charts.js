(()=>{const N="http://www.w3.org/2000/svg";
for(const s of document.querySelectorAll("svg.chart")){
const [a,b,l,p]=s.dataset.x.split(",").map(Number),P=[...s.querySelectorAll("path[data-s]")].map(e=>[e.dataset.n,e.dataset.s.split(" ").map(Number),e.dataset.v.split(" ")]);
if(!P.length)continue;
const H=s.viewBox.baseVal.height,W=s.viewBox.baseVal.width,tip=document.createElement("div"),ln=document.createElementNS(N,"path");
tip.className="tip";tip.hidden=true;s.parentNode.append(tip);ln.setAttribute("class","hair");s.append(ln);
const near=(x,v)=>{let i=0,j=x.length-1;while(i<j){const m=i+j>>1;x[m]<v?i=m+1:j=m}return i&&v-x[i-1]<x[i]-v?i-1:i};
s.addEventListener("pointermove",e=>{const r=s.getBoundingClientRect(),u=(e.clientX-r.left)/r.width*W,q=a+(u-l)/p*(b-a);
if(u<l||u>l+p){tip.hidden=true;ln.setAttribute("d","");return}
let best=null;for(const[,x]of P){const v=x[near(x,q)];if(best===null||Math.abs(v-q)<Math.abs(best-q))best=v}
const X=l+(best-a)/(b-a)*p;ln.setAttribute("d",`M${X} 0V${H-38}`);
tip.textContent=s.dataset.u+" "+best+P.map(([n,x,v])=>{const i=near(x,best);return"\n"+n+"  "+v[i]+(x[i]===best?"":"  @"+x[i])}).join("");
tip.hidden=false;const f=s.parentNode.getBoundingClientRect(),k=X/W*r.width+r.left-f.left;
tip.style.left=(k>f.width/2?k-tip.offsetWidth-12:k+12)+"px";tip.style.top=e.clientY-f.top+(e.clientY-r.top>r.height/2?-tip.offsetHeight-14:14)+"px"});
s.addEventListener("pointerleave",()=>{tip.hidden=true;ln.setAttribute("d","")})}})();
