export default { initialize, render };
