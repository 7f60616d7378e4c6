/* Charts: values under the pointer or the arrow keys, and zoom. Reads the data attributes that svg.py writes. */
(()=>{const NS="http://www.w3.org/2000/svg",tools=document.getElementById("chart-tools");
const add=(to,name,given,text)=>{const e=document.createElementNS(NS,name);for(const k in given)e.setAttribute(k,given[k]);if(text!=null)e.textContent=text;to.append(e);return e};
/* "5 5*3;20": differences, * repeats, ; breaks the line in front of the point */
const unpack=t=>{const x=[],cut=[];let v=0;for(const[,s,d,n]of t.matchAll(/(^|[ ;])(-?\d+)(?:\*(\d+))?/g))for(let i=n||1;i--;){cut.push(s===";"||!x.length);x.push(v+=+d)}return[x,cut]};
const first=(x,v)=>{let i=0,j=x.length;while(i<j){const m=i+j>>1;x[m]<v?i=m+1:j=m}return i};
const near=(x,v)=>{const i=first(x,v);return i&&(i===x.length||v-x[i-1]<x[i]-v)?i-1:i};
const clip=v=>Math.min(1e300,Math.max(-1e300,v));
const ticks=(a,b,n,whole)=>{const r=(b-a)/n;if(!(r>0&&isFinite(r)))return[a];const p=10**Math.floor(Math.log10(r));
let s=[1,2,5,10].map(m=>m*p).find(s=>s>=r*(1-1e-9));if(whole)s=Math.max(1,Math.round(s));
const out=[];for(let k=Math.ceil(a/s-1e-9);k<=Math.floor(b/s+1e-9);k++)out.push(k*s);return out};
const labels=v=>{if(v.length<2)return v.map(x=>""+ +x.toPrecision(6));
const top=Math.max(...v.map(Math.abs)),step=Math.floor(Math.log10(v[1]-v[0])+1e-9);
if(top>=1e6||top<1e-3){const p=Math.floor(Math.log10(top)+1e-9);return v.map(x=>x?(x/10**p).toFixed(Math.max(0,p-step))+"e"+p:"0")}
const d=Math.max(0,-step);return v.map(x=>Math.abs(x)>=1e4?x.toLocaleString("en",{minimumFractionDigits:d,maximumFractionDigits:d}):x.toFixed(d))};
/* The range of values [low, high] as axes.py chooses it. */
const range=(v,log,bad)=>{v=v.map(clip);if(log)v=v.filter(x=>x>0).map(Math.log10);if(!v.length)return null;
const a=Math.min(...v),b=Math.max(...v);if(log&&b>a){const p=.04*(b-a);return[a-p,b+p]}if(log)return[a-.5,b+.5];
const p=b-a<=1e-9*Math.max(Math.abs(a),Math.abs(b))?.5*Math.abs(b)||1:.06*(b-a),zero=0<=a&&a<=.25*b;
return[zero?(a>0?0:-.03*b):a-p,b+(bad?2.5*p:p)]};
for(const svg of document.querySelectorAll("svg.chart")){
const box=svg.parentNode,[LOW,HIGH,LEFT,PLOT]=svg.dataset.x.split(",").map(Number),W=svg.viewBox.baseVal.width,H=svg.viewBox.baseVal.height;
const lines=[],panels=[];let low=LOW,high=HIGH,steps=null,at=null;
const tip=document.createElement("div"),hair=add(svg,"path",{class:"hair",fill:"none"}),drag=add(svg,"rect",{class:"drag",y:0,height:H-38,width:0});
tip.className="tip";tip.hidden=true;tip.setAttribute("role","status");box.append(tip);
svg.setAttribute("tabindex","0");
/* decoded when somebody looks */
const load=()=>{if(steps)return;const all=new Set();for(const g of svg.querySelectorAll("[data-p]")){
const[top,height,log,bad]=g.dataset.p.split(",").map(Number),p={g,top,height,log,bad,lines:[]};
for(const e of g.querySelectorAll("[data-s]")){const[x,cut]=unpack(e.dataset.s),told=e.dataset.v.split(" "),l={e,x,cut,told,v:told.map(Number),dots:e.nextElementSibling};p.lines.push(l);lines.push(l);x.forEach(s=>all.add(s))}
for(const e of g.querySelectorAll("path[data-k]")){const ends=unpack(e.dataset.b)[0],kinds=e.dataset.k.split(" ");ends.forEach(s=>all.add(s));
for(const l of p.lines)if(l.e.dataset.n===e.dataset.n&&l.e.dataset.a===e.dataset.a)l.bad=s=>{const i=kinds.findIndex((_,k)=>ends[2*k]<=s&&s<=ends[2*k+1]);return i<0?null:kinds[i]}}
panels.push(p);
/* a drawing within the drawing cuts off what lies beyond the plot */
const w=PLOT+6,h=height+6,c=add(g,"svg",{x:LEFT-3,y:top-3,width:w,height:h,viewBox:`${LEFT-3} ${top-3} ${w} ${h}`});c.append(...g.querySelectorAll("[data-s],.dots,.ring"))}
steps=[...all].sort((a,b)=>a-b)};
const X=s=>LEFT+PLOT*(s-low)/(high-low),inside=s=>s>=low&&s<=high,R=v=>v.toFixed(1);
const panel=p=>{const seen=p.lines.flatMap(l=>l.v.filter((_,i)=>inside(l.x[i])));
/* nothing inside: the line between the neighbours outside is seen */
const edge=()=>p.lines.flatMap(l=>[first(l.x,low)-1,first(l.x,high)].flatMap(i=>i>=0&&i<l.x.length?[l.v[i]]:[]));
const[a,b]=range(seen,p.log,p.bad)||range(edge(),p.log,p.bad)||[0,1],bottom=p.top+p.height;
const Y=v=>{v=clip(v);if(p.log)v=Math.log10(Math.max(v,10**Math.max(a,-300)));return bottom-p.height*(v-a)/(b-a)};
for(const e of p.g.querySelectorAll(".yt"))e.remove();
let marks;const n=p.height>150?5:3;if(p.log){let k=[];for(let i=Math.ceil(a);i<=Math.floor(b);i++)k.push(i);const by=Math.max(1,Math.ceil(k.length/(n+1)));k=k.filter((_,i)=>i%by===0);
marks=k.length>1?k.map(i=>[10**i,i>-4&&i<5?""+ +(10**i).toPrecision(6):"1e"+i]):null}
if(!marks){const v=p.log?ticks(10**a,10**b,n).filter(x=>x>0):ticks(a,b,n),t=labels(v);marks=v.map((x,i)=>[x,t[i]])}
if(!seen.length&&!edge().length)marks=[];
let d="";for(const[v,t]of marks){const y=Y(v);d+=`M${LEFT} ${R(y)}h${PLOT}`;add(p.g,"text",{class:"t2 yt",x:LEFT-8,y:R(y+4),"text-anchor":"end","font-size":11.5},t)}
p.g.querySelector(".grid").setAttribute("d",d+`M${LEFT} ${bottom}h${PLOT}`);
for(const l of p.lines){const i=Math.max(0,first(l.x,low)-1),j=Math.min(l.x.length,first(l.x,high+1e-9)+1),few=j-i<=42&&!l.e.dataset.a;let d="",dots="";
for(let k=i;k<j;k++){const q=R(X(l.x[k]))+" "+R(Y(l.v[k]));d+=(k===i||l.cut[k]?"M":"L")+q;if(inside(l.x[k])&&(few||l.cut[k]&&(k+1===l.x.length||l.cut[k+1])))dots+=`M${q}h.01`}
l.e.setAttribute("d",d);l.dots.setAttribute("d",dots)}
for(const c of p.g.querySelectorAll(".ring")){const s=+c.dataset.m;c.setAttribute("cx",R(X(s)));c.setAttribute("cy",R(Y(+c.dataset.v)));c.style.display=inside(s)?"":"none"}};
const draw=(a,b)=>{load();if(b-a<2){const m=(a+b)/2;a=m-1;b=m+1}const w=Math.min(b-a,HIGH-LOW);low=Math.max(LOW,Math.min(a,HIGH-w));high=low+w;
panels.forEach(panel);
for(const e of svg.querySelectorAll("path[data-m]"))e.setAttribute("d",unpack(e.dataset.m)[0].filter(inside).map(s=>`M${R(X(s))} ${e.dataset.y}${e.dataset.t}`).join(""));
for(const e of svg.querySelectorAll("text[data-m]")){const s=+e.dataset.m,half=e.getComputedTextLength()/2;e.style.display=inside(s)?"":"none";if(half||inside(s))e.setAttribute("x",R(Math.min(LEFT+PLOT-half,Math.max(LEFT+half,X(s)))))}
for(const e of svg.querySelectorAll("[data-b]")){const s=unpack(e.dataset.b)[0];let d="";
for(let i=0;i<s.length;i+=2){const l=Math.max(low,s[i]),r=Math.min(high,s[i+1]),on=l<=r;
if(e.tagName==="path"){if(on)d+=`M${R(X(l)-1.5)} ${e.dataset.y}H${R(X(r)+1.5)}`}
else{const w=Math.max(2.5,X(r)-X(l));e.setAttribute("x",R(X(r)-w));e.setAttribute("width",R(w));e.style.display=on?"":"none"}}
if(e.tagName==="path")e.setAttribute("d",d)}
for(const e of svg.querySelectorAll(".xt"))e.remove();
const v=ticks(low,high,8,true).filter(inside),t=labels(v);v.forEach((s,i)=>add(svg,"text",{class:"t2 xt",x:R(Math.min(X(s),W-2-3.5*t[i].length)),y:H-21,"text-anchor":"middle","font-size":11.5},t[i]));
svg.querySelector(".tick").setAttribute("d",v.map(s=>panels.map(p=>`M${R(X(s))} ${p.top+p.height}v4`).join("")).join(""));
svg.append(hair,drag);bar.classList.toggle("zoomed",w<HIGH-LOW);if(at!==null)inside(at)?show(at):hide()};
const words=e=>[...e.childNodes].map(n=>{if(n.nodeType===3)return n.data;const s=document.createElement("span");s.lang=n.getAttribute("lang");s.hidden=n.hasAttribute("display")||n.hidden===true;s.textContent=n.textContent;return s});
const hide=()=>{at=null;tip.hidden=true;hair.setAttribute("d","")};
const show=(s,y)=>{at=s;const x=X(s);hair.setAttribute("d",`M${R(x)} 0V${H-38}`);
tip.replaceChildren(...words(svg.querySelector(".unit"))," "+s);
for(const l of lines){if(!l.x.length)continue;const i=near(l.x,s),bad=l.x[i]!==s&&l.bad&&l.bad(s);if(!bad&&!inside(l.x[i]))continue;tip.append("\n",l.e.dataset.n);if(l.e.dataset.a)tip.append(" (",...words(tools.content.querySelector(".attempt"))," ",l.e.dataset.a,")");
tip.append("  "+(bad||l.told[i]+(l.x[i]===s?"":"  @"+l.x[i])))}
tip.hidden=false;const r=svg.getBoundingClientRect(),f=box.getBoundingClientRect(),k=x/W*r.width+r.left-f.left;y=y===undefined?r.height*.2:y-r.top;
tip.style.left=box.scrollLeft+(k>f.width/2?k-tip.offsetWidth-12:k+12)+"px";tip.style.top=(y>r.height/2?y-tip.offsetHeight-14:y+14)+"px"};
const stepAt=e=>{const r=svg.getBoundingClientRect();return low+((e.clientX-r.left)/r.width*W-LEFT)/PLOT*(high-low)};
const nearest=v=>{load();const s=steps.slice(first(steps,low),first(steps,high+1e-9));return s.length?s[near(s,v)]:null};
const zoom=by=>{const m=at===null?(low+high)/2:at,w=(high-low)*by/2;at===null?draw(m-w,m+w):draw(m-(m-low)*by,m+(high-m)*by)};
const reset=()=>{draw(LOW,HIGH);hide()};
const bar=tools.content.firstElementChild.cloneNode(true),[all,out,inn]=bar.querySelectorAll("button");
bar.querySelector(".attempt").remove();box.before(bar);
inn.onclick=()=>zoom(.5);out.onclick=()=>zoom(2);all.onclick=reset;
let from=null;
svg.addEventListener("pointerdown",e=>{const s=stepAt(e);if(e.button||s<low||s>high)return;from=s;svg.setPointerCapture(e.pointerId);const n=nearest(s);if(n!==null)show(n,e.clientY)});
svg.addEventListener("pointermove",e=>{const s=stepAt(e);
if(from!==null){const a=X(Math.max(low,Math.min(from,s))),b=X(Math.min(high,Math.max(from,s)));drag.setAttribute("x",a);drag.setAttribute("width",Math.max(0,b-a))}
const n=s<low||s>high?null:nearest(s);n===null?hide():show(n,e.clientY)});
const end=e=>{const wide=+drag.getAttribute("width"),f=from;from=null;drag.setAttribute("width",0);
if(f===null||e.type==="pointercancel"||wide<6)return;const s=stepAt(e);draw(Math.max(low,Math.min(f,s)),Math.min(high,Math.max(f,s)))};
svg.addEventListener("pointerup",end);svg.addEventListener("pointercancel",end);
svg.addEventListener("pointerleave",e=>{if(from===null&&e.pointerType==="mouse")hide()});svg.addEventListener("blur",hide);svg.addEventListener("dblclick",reset);
svg.addEventListener("keydown",e=>{if(e.ctrlKey||e.metaKey||e.altKey)return;load();const s=steps.slice(first(steps,low),first(steps,high+1e-9)),i=at===null?-1:first(s,at);
const to={ArrowRight:at===null?0:i+1,ArrowLeft:at===null?s.length-1:i-1,Home:0,End:s.length-1}[e.key];
if(to!==undefined&&s.length)show(s[Math.max(0,Math.min(s.length-1,to))]);
else if(e.key==="+"||e.key==="=")zoom(.5);else if(e.key==="-")zoom(2);else if(e.key==="Escape")reset();else return;e.preventDefault()})}})();
