import { defineConfig } from "vite";

// One classic script without imports, so that the page opens from disk.
export default defineConfig({
  build: {
    outDir: "../src/tilewright/report/built",
    emptyOutDir: true,
    copyPublicDir: false,
    target: "es2022",
    license: { fileName: "licenses.md" },
    lib: { entry: "src/main.ts", formats: ["iife"], name: "tilewright", fileName: () => "page.js" },
  },
});
